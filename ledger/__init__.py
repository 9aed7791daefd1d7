"""Facts, tables, reducers, laws, logs and replay. Imports nothing of ours."""
