"""What every room may use: names, checks, files, terminal, devices, linear algebra."""
