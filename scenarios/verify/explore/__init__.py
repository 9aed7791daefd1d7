"""Breadth-first exploration of the production core: every order of deliveries, faults and commands of small worlds."""
