"""A time for every kernel, without a GPU: traced CTAs of a built kernel, simulated with the rates of a chip.

| file | what |
|---|---|
| `rates.py` | latencies and rates of a chip, as data |
| `trace.py` | what one cluster of each launch does, as the emulator records it |
| `costs.py` | a trace as steps with times, on the resources of an SM |
| `simulation.py` | steps replayed in time, for all CTAs that one SM runs |
| `launches.py` | one launch: waves, programmatic launch, and the time of each resource alone |
| `kernel_features` | numbers of the trace and the launch that exist for any source |
| `model.py` | the prediction: a plan's launches, and a bounded factor fitted to what these leave (`correction.npz`) |
"""
