"""Pure functions of feature tensors: they know no trainer, run folder or data set; only `features` reads data."""
