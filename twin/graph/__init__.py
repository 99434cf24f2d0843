"""StepGraphs: the ops of one step, built from schedule, model and hardware."""
