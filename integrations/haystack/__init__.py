"""qa-cluster in Haystack: a document store, a retriever and a reader. Install the extra `haystack`.

Haystack loads components only from the namespace `haystack_integrations`. So the folders of this package are installed
in that namespace, and cannot be imported under their own names:
- `document_stores`: ``haystack_integrations.document_stores.qa_cluster``
- `retrievers`: ``haystack_integrations.components.retrievers.qa_cluster``
- `readers`: ``haystack_integrations.components.readers.qa_cluster``
"""
