"""The limiter's first hour on a GPU: what a fake driver cannot show, step by step, on one card
(``python -m e2e.gpu``)."""
