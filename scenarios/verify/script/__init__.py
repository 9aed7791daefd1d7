"""Scripted scenarios: a world, steps, faults and expectations as data, and what runs them."""
