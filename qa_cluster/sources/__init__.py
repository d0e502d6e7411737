"""Makes clean text of documents as people keep them: RST, HTML, manual pages, PDF and others."""
