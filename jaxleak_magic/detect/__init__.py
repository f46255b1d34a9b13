"""Which traces were born in a run and outlived it. The only room that touches JAX's private names."""
