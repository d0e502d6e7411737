"""The texts that the tests of the pipeline read."""

ADA = "Ada Lovelace wrote the first program in 1843."
WHO, WHEN = "Who wrote the first program?", "When was the first program written?"
PAIR = {"question": WHO, "context": ADA}
FILLER = "Nothing of interest happened in the valley that year. "
