"""The pictures of docs/, drawn from committed results. Run: python -m benchmarks.pictures.NAME RESULT PICTURE

- `campaign`: speedup over AutoTuning's time, one dot per shape
- `adaptation`: how a policy adapts, by the shapes that were measured
- `search_curves`: what a search finds for how many GPU seconds and candidates
- `search_budgets`: what searches by different priors have found after so many candidates
- `lm_stages`: what the stages of `train lm` gain
- `shapes`: speedup over each baseline, by shape
- `tuned`: what other algorithms of cuBLASLt gain over torch.mm
- `author`: what became of each reply of the scripted author
- `diagnosis`: kernels with a known fault and their remedies
- `faults`: seeded faults by class and by the tool that finds them
- `attacks`: attacks on the timer, before and after
- `svg`: SVG elements and a logarithmic axis
"""
