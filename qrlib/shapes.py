"""`Float[Tensor, "B m n"]`: shapes in signatures.

The tests check them with jaxtyping; where that is not installed they are there to be read.
"""

try:
    from jaxtyping import Bool, Float, Int
except ModuleNotFoundError:

    class Float:
        """Stands in for jaxtyping's: the shape is dropped, the type stays."""

        def __class_getitem__(cls, item):
            return item[0]

    Bool = Int = Float
