"""Answers to people's questions, made from the same decision as the scheduler's."""
