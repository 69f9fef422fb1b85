"""Makes the variants and proves that each gives the eager model's answers."""
