"""What is done with the model: algorithms, each a `step` from state to state, and the one loop that runs them."""
