"""The command line: a file a command, and all drawing."""
