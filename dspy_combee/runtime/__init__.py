"""What both optimizers stand on: execution, budget, run log, retry, the embedded model."""
