"""GPU kernel times by shape and precision, fitted to measured kernels.

`model` is the cost model, `ops` names the kernel of an op, `times` times it:
`gemm`, `convolution` and `rates.memory_us` are the classes. `parameters`
holds what was fitted and to which data; `docs/costs.md` says how well it fits.
"""
