"""What a product is: sizes, layout, element, operator and batch."""

import pytest

from cudal2_agent.agent.library.advise.products import CountedProduct, MatrixProduct, Recording, read_product, shape_file


def product(**changes: object) -> MatrixProduct:
    fields = {"part": "forward", "m": 4, "n": 16, "k": 8, "layout": "nn", "element": "f16", "operator": "mm"}
    return MatrixProduct.model_validate(fields | changes)


@pytest.mark.parametrize(
    ("a_strides", "b_strides", "layout", "packed"),
    [
        ((8, 1), (16, 1), "nn", True),
        ((8, 1), (1, 8), "tn", True),
        ((1, 4), (16, 1), "nt", True),
        ((1, 4), (1, 8), "tt", True),
        ((64, 1), (1, 64), "tn", False),
        ((8, 1), (32, 1), "nn", False),
        ((0, 0), (16, 1), "nn", False),
        ((32, 2), (1, 8), "tn", False),
    ],
)
def test_the_layout_is_how_operands_are_stored(
    a_strides: tuple[int, int], b_strides: tuple[int, int], layout: str, packed: bool
) -> None:
    """What lies in memory neither by rows nor by columns is copied by rows: expanded and strided operands."""
    found = read_product("mm", "forward", "f16", ((4, 8), a_strides), ((8, 16), b_strides))
    assert found == product(layout=layout, packed=packed)


def test_the_stride_of_a_single_row_does_not_count() -> None:
    found = read_product("mm", "forward", "f16", ((1, 8), (99, 1)), ((8, 16), (16, 1)))
    assert found == product(m=1)


def test_a_batch_that_shares_b_is_one_longer_product() -> None:
    a, b = ((3, 4, 8), (32, 8, 1)), (3, 8, 16)
    assert read_product("bmm", "forward", "f16", a, (b, (0, 16, 1))) == product(m=12, operator="bmm")
    assert read_product("bmm", "forward", "f16", a, (b, (128, 16, 1))) == product(batch=3, operator="bmm")


@pytest.mark.parametrize("a", [(0, 8), (4, 0)])
def test_a_product_without_elements_is_none(a: tuple[int, int]) -> None:
    assert read_product("mm", "forward", "f16", (a, (8, 1)), ((a[1], 16), (16, 1))) is None


def test_shapes_for_a_campaign_count_matrices_whatever_computes_them() -> None:
    counted = [
        CountedProduct(product=product(), calls=2),
        CountedProduct(product=product(operator="addmm", element="bf16"), calls=3),
        CountedProduct(product=product(operator="bmm", batch=4, m=2), calls=5),
    ]
    found = [(one.m, one.count) for one in shape_file(counted).products]
    assert found == [(2, 20), (4, 5)]


def test_other_elements_may_count_as_half_precision() -> None:
    counted = (CountedProduct(product=product(), calls=2), CountedProduct(product=product(element="f32"), calls=3))
    recording = Recording(products=counted)
    assert recording.in_half_precision("f16").products == (CountedProduct(product=product(), calls=5),)
    both = {(one.product.element, one.calls) for one in recording.in_half_precision("bf16").products}
    assert both == {("f16", 2), ("bf16", 3)}
    with pytest.raises(ValueError, match="times of a trace"):
        recording.model_copy(update={"gpu_us": 1.0}).in_half_precision("f16")


def test_products_with_an_activation_stand_with_the_others_and_again() -> None:
    """Alone they add up with equal ones; the second row counts nothing twice, and `campaign run` has no activations."""
    fused = product(activation="gelu")
    recording = Recording(products=(CountedProduct(product=product(), calls=2), CountedProduct(product=fused, calls=3)))
    assert recording.alone().products == (CountedProduct(product=product(), calls=5),)
    assert recording.both_ways().products == (
        CountedProduct(product=product(), calls=5),
        CountedProduct(product=fused, calls=3, again=True),
    )
    assert recording.alone().alone() == recording.alone()
    assert [one.count for one in shape_file(recording.products).products] == [5]
    assert fused.operands == "nn f16 gelu"


def test_a_gated_layer_is_two_products_or_one_of_both_widths() -> None:
    """As programs of other ways run it, which are counted, and of which `campaign run` has shapes."""
    kinds = product(activation="silu", gated="apart"), product(activation="silu", gated="joined"), product(activation="gelu")
    apart, joined, activated = kinds
    recording = Recording(products=tuple(CountedProduct(product=one, calls=3) for one in kinds))
    plain, both = product(), product(n=32)
    assert (apart.operands, joined.operands) == ("nn f16 gated silu",) * 2
    assert (apart.alone, joined.alone) == (plain, both)
    assert {one.product: one.calls for one in recording.alone().products} == {plain: 9, both: 3}
    assert {(one.n, one.count) for one in shape_file(recording.products).products} == {(16, 9), (32, 3)}
    found = {(one.product, one.again): one.calls for one in recording.gated_both_ways().products}
    assert found == {(plain, False): 6, (both, False): 3, (activated, False): 3, (apart, True): 3, (joined, True): 3}
    found = {(one.product, one.again): one.calls for one in recording.both_ways().products}
    assert found == {(plain, False): 9, (both, False): 3, **{(one, True): 3 for one in kinds}}
    singles = recording.model_copy(
        update={"products": tuple(CountedProduct(product=one.model_copy(update={"element": "f32"}), calls=3) for one in kinds)}
    )
    assert {one.calls for one in singles.in_half_precision("f16").products} == {3}
    plain_only = Recording(products=(CountedProduct(product=plain, calls=1),))
    assert plain_only.gated_both_ways() is plain_only


def test_a_stored_product_without_an_activation_is_read_and_written_as_before() -> None:
    stored = '{"part":"forward","m":4,"n":16,"k":8,"layout":"nn","element":"f16","operator":"mm","batch":1,"packed":true}'
    assert MatrixProduct.model_validate_json(stored).model_dump_json() == stored
    assert CountedProduct(product=product(), calls=2).model_dump_json() == f'{{"product":{stored},"calls":2,"gpu_us":null}}'
