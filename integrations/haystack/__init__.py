"""qa-cluster in Haystack: a document store, a retriever and a reader. Install the extra `haystack`.

Haystack loads components from the namespace `haystack_integrations` only. So the folders in here are installed as its
packages, and under no other name:

- `document_stores`: ``haystack_integrations.document_stores.qa_cluster``
- `retrievers`: ``haystack_integrations.components.retrievers.qa_cluster``
- `readers`: ``haystack_integrations.components.readers.qa_cluster``
"""
