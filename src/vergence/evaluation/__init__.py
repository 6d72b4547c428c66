"""Pure functions of feature tensors: none knows the trainer, a run folder or a data set (`features` alone reads data)."""
