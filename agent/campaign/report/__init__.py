"""The results of campaigns: their figures, and one HTML page.

`figures`: geometric means and shares of a set of rows,
by class. `page`: the page, which loads nothing from a network. `charts`: its charts. `panel`: one result in full.
`reasons`: what bounds the time of a result. `explaining`: asks the counters of Nsight Compute.
"""
