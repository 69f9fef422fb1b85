"""`python -m tests.ray` makes the environment of these tests."""

from tests.ray.environment import make

if __name__ == "__main__":
    make()
