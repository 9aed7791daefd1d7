"""Where a ledger's events lie: files of SQLite or memory, their format, their bytes, and what holds them to it."""
