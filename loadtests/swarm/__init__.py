"""The Locust part: users, shapes, gates, listeners. Locust patches the process that imports it."""
