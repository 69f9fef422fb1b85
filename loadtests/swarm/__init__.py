"""The Locust half: users, shapes, gates, the plot of a run. Locust patches what imports it."""
