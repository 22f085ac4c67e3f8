"""Algorithms of cuBLASLt in libraries: chosen from what campaigns recorded, or tuned for given products on the GPU at hand.

`algorithm_choice`: from rows of campaigns. `algorithm_tuning`: from cuBLASLt's own suggestions for a product, measured by
`suggested_algorithms`; `tuned_products`: its rows, and a library with what they found. `algorithm_check`: compares and times an
algorithm that a library holds. `product_graphs`: operands, and products as CUDA graphs.
"""
