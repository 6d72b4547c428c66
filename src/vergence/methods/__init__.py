"""Methods, which turn a batch into named loss terms; `core.Method` is the contract."""
