"""Questions with contexts for the programs, and the answers that the bundled reader finds."""

QUESTIONS = ["Who wrote the first program?", "Wer schrieb Faust?", "What barks?"]
CONTEXTS = [
    "In 1843, Ada Lovelace wrote the first program.",
    "Der Dichter 🖋️ Göthe – alias Johann Wolfgang von Goethe – schrieb Faust in Weimar.",
    "The cat sleeps while the dog barks.",
]
