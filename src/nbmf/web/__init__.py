"""A model behind an endpoint and on a page: what it can be asked (views), how it is served, what a browser gets."""
