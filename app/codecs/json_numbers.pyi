"""Bodies of floats, read by machine code; deploy/compile.py makes it of json_numbers.cpp."""

def read(
    body: bytes, key: str, name: str, shape: tuple[int, ...], max_items: int | None, wide: bool, /
) -> bytes | None:
    """The numbers of a body: float32, or float64 if `wide`; None: wrong, or valid otherwise.

    Arguments as for `NumberReader`, for an item of this shape.
    """
