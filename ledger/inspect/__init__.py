"""Looking back at a ledger: replay, explanations, differences, numbers. It reads and never writes."""
