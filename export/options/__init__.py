"""The options of all commands: they need only the standard library, so `--help` is quick."""
