"""Compiled reader of bodies of floats; deploy/machine_code.py builds it from json_numbers.cpp."""

def read(
    body: bytes, key: str, name: str, shape: tuple[int, ...], max_items: int | None, wide: bool, /
) -> bytes | None:
    """The numbers of a body: float32, or float64 if `wide`; None if invalid or in another form.

    Arguments are as for `NumberReader`, for an item of this shape.
    """
