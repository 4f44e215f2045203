"""List schedulers: HEFT and Baechi's m-TOPO, m-ETF and m-SCT."""
