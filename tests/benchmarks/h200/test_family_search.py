from benchmarks.h200.family_search import best_rows, table

ROWS = [
    {"shape": "64x64x64", "search": "old", "speedup": 1.2},
    {"shape": "64x64x64", "search": "old", "speedup": 1.5},
    {"shape": "64x64x64", "search": "old", "speedup": None},
    {"shape": "64x64x64", "search": "new", "speedup": 2.0},
    {"shape": "8x8x8", "search": "old", "speedup": 1.0},
]


def test_the_fastest_of_each_search_counts():
    assert [(row["shape"], row["search"], row["speedup"]) for row in best_rows(ROWS)] == [
        ("64x64x64", "old", 1.5),
        ("64x64x64", "new", 2.0),
        ("8x8x8", "old", 1.0),
    ]


def test_means_cover_the_shapes_that_all_searches_have():
    lines = table(ROWS).splitlines()
    assert lines[0] == "| shape | old | new |"
    assert lines[2:] == ["| 64x64x64 | 1.500 | 2.000 |", "| geometric mean | 1.500 | 2.000 |"]
