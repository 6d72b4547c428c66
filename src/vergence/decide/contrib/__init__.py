"""What other libraries are extended with; each file needs the library that it is named after."""
