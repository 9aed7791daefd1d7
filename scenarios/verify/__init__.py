"""What proves the project: scripted and random runs, the explorer, and checkers that share no code with the core."""
