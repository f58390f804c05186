"""Text and JSON to records and back. All odd wire names live here; no rule of scheduling does."""
