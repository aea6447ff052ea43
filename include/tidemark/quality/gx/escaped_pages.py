"""Render results of Great Expectations as Data Docs in which values and names are text, never HTML.

Great Expectations itself escapes only some of them.
"""

from __future__ import annotations

import copy
from html import escape
from typing import Any

from great_expectations.core import ExpectationSuiteValidationResult
from great_expectations.render.components import RenderedDocumentContent
from great_expectations.render.renderer.page_renderer import ValidationResultsPageRenderer
from great_expectations.render.view.view import DefaultJinjaPageView


class EscapedResultsRenderer(ValidationResultsPageRenderer):
    """Renders results whose texts it has escaped, for `EscapedPageView`."""

    def render(
        self, validation_results: ExpectationSuiteValidationResult, suite_parameters: Any = None
    ) -> RenderedDocumentContent:
        """Render a page of results."""
        escaped: Any = copy.deepcopy(validation_results)
        for result in escaped.results:
            config = result.expectation_config
            config.kwargs = _escape(config.kwargs)
            config.meta = _escape(config.meta)
            config.notes = _escape(config.notes)
            config.description = _escape(config.description)
            result.exception_info = _escape(result.exception_info)
            result.result = _escape(result.result)
            if "unexpected_percent" not in result.result:  # Without it, Great Expectations fails to render the others.
                result.result = {name: value for name, value in result.result.items() if "unexpected" not in name}
        page: RenderedDocumentContent = super().render(escaped, suite_parameters)
        return page


class EscapedPageView(DefaultJinjaPageView):
    """Writes pages of escaped texts without escaping them again."""

    @staticmethod
    def _escape_template_param_value(value: Any) -> Any:
        return value


def _escape(value: Any) -> Any:
    """Escape the texts in a value. Pages insert them as HTML, and read `$` as the beginning of a parameter."""
    match value:
        case str():
            return escape(value).replace("$", "&#36;")
        case dict():
            return {_escape(name): _escape(item) for name, item in value.items()}
        case list() | tuple():
            return [_escape(item) for item in value]
    return value
