"""The command line: options and printing. `vergence.cli.commands.main` is its entry point."""
