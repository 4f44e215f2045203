"""The recurrent placers: hierarchical (HDP) and RNN-based."""
