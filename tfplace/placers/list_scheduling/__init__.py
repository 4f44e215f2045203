"""List schedulers: HEFT and Baechi's m-TOPO, m-ETF, m-SCT."""
