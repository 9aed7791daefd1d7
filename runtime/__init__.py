"""Selects, plans, decides and drives. Imports ledger, kernels and transports."""
