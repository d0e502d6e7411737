"""Makes clean text of documents as people keep them: RST, Markdown, HTML, manual pages, text, changelogs, PDF, Office."""
