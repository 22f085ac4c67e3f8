"""Quality and cost of search in the knowledge base.

- `score`: scores search results against questions with verified answers
- `ablation`: what each part of the search contributes
- `symbols`: whether a name that one file has finds this file first
- `carried`: carries questions to another release
- `cost`: time and memory of indexing, updating and searching
- `questions_*.jsonl`: three question sets, and 100 paraphrases of their questions without a name of the glossary
"""
