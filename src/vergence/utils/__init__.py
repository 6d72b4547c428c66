"""What every package may use: names, checks, files, terminal, devices, linear algebra."""
