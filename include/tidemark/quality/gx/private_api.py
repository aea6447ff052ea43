"""List the private parts of Great Expectations that Tidemark relies on, which any update may move.

Great Expectations marks its public API with the decorator `public_api`. All else is private, also without an
underscore. The list is that of 1.24. `tests/quality/test_private_api.py` compares it with the installed version, and
with the imports of this package. What the parts do is compared by `test_batched_engine*.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

PRIVATE_PARTS: Mapping[str, str] = {
    # `batched_engine`: Great Expectations computes metrics of one batch at a time. The engine replaces how it resolves
    # aggregates, to compute those of all slices by one query.
    "batched_engine": """
        core.id_dict:IDDict
        core.id_dict:IDDict.to_id
        execution_engine.sparkdf_execution_engine:SparkDFExecutionEngine(spark, persist)
        execution_engine.sparkdf_execution_engine:SparkDFExecutionEngine.dataframe
        execution_engine.sparkdf_execution_engine:SparkDFExecutionEngine.get_domain_records(domain_kwargs)
        execution_engine.sparkdf_execution_engine:SparkDFExecutionEngine.load_batch_data(batch_id, batch_data)
        execution_engine.sparkdf_execution_engine:SparkDFExecutionEngine.resolve_metric_bundle(metric_fn_bundle)
        execution_engine.execution_engine:MetricComputationConfiguration(metric_configuration)
        execution_engine.execution_engine:MetricComputationConfiguration(metric_fn, compute_domain_kwargs)
        expectations.expectation:Expectation.configuration
        expectations.expectation:Expectation.get_validation_dependencies(execution_engine, runtime_configuration)
        expectations.expectation:Expectation.metrics_validate(metrics, runtime_configuration, execution_engine)
        expectations.registry:get_metric_provider(metric_name, execution_engine)
        util:convert_to_json_serializable(data)
        validator.metric_configuration:MetricConfiguration.id
        validator.metric_configuration:MetricConfiguration.metric_dependencies
        validator.metric_configuration:MetricConfiguration.metric_domain_kwargs
        validator.metric_configuration:MetricConfiguration.metric_name
        validator.metric_configuration:MetricConfiguration.metric_value_kwargs
        validator.metrics_calculator:MetricsCalculator(execution_engine, show_progress_bars)
        validator.metrics_calculator:MetricsCalculator.build_metric_dependency_graph(metric_configurations)
        validator.validation_graph:MetricEdge.left
        validator.validation_graph:MetricEdge.right
        validator.validation_graph:ValidationGraph(execution_engine)
        validator.validation_graph:ValidationGraph.add(edge)
        validator.validation_graph:ValidationGraph.edges
        validator.validation_graph:ValidationGraph.resolve(runtime_configuration, show_progress_bars)
        validator.validator:ValidationDependencies.get_metric_configurations
        validator.validator:Validator(execution_engine)
        validator.validator:Validator.graph_validate(configurations, runtime_configuration)
        validator.validator:Validator.metrics_calculator
        """,
    # Rows that violate an expectation: the metric `.condition` as a column, on the rows of its domain.
    "failing_rows": """
        validator.metric_configuration:MetricConfiguration(metric_name, metric_domain_kwargs, metric_value_kwargs)
        validator.metrics_calculator:MetricsCalculator.get_metric(metric)
        """,
    # The expectation `rows`, and SQL as `row_condition`.
    "row_rules": """
        expectations.expectation:ColumnMapExpectation.map_metric
        expectations.expectation:ColumnMapExpectation.success_keys
        expectations.metrics.map_metric_provider.column_condition_partial:column_condition_partial(engine)
        expectations.metrics.map_metric_provider.column_map_metric_provider:ColumnMapMetricProvider.condition_value_keys
        expectations.row_conditions:PassThroughCondition(pass_through_filter)
        """,
    # The fast path writes a result as Great Expectations does, under the same path. `test_gate.py` compares the files.
    "fast_path": """
        data_context.types.resource_identifiers:ValidationResultIdentifier.from_tuple(tuple_)
        data_context.types.resource_identifiers:ValidationResultIdentifier.to_tuple
        """,
    "project": """
        data_context.types.resource_identifiers:ExpectationSuiteIdentifier(name)
        data_context:AbstractDataContext._add_fluent_datasource(datasource)
        data_context:AbstractDataContext.validation_results_store
        data_context.store:ValidationResultsStore.list_keys
        data_context.store:ValidationResultsStore.set(key, value)
        expectations.registry:get_expectation_impl(expectation_name)
        """,
    "escaped_pages": """
        render.components:RenderedDocumentContent
        render.renderer.page_renderer:ValidationResultsPageRenderer.render(validation_results, suite_parameters)
        render.view.view:DefaultJinjaPageView._escape_template_param_value(value)
        """,
    "object_store": """
        data_context.store.tuple_store_backend:TupleStoreBackend(platform_specific_separator)
        data_context.store.tuple_store_backend:TupleStoreBackend._convert_filepath_to_key(filepath)
        data_context.store.tuple_store_backend:TupleStoreBackend._convert_key_to_filepath(key)
        data_context.store.tuple_store_backend:TupleStoreBackend._url_path_escape_special_characters(path)
        data_context.store.tuple_store_backend:TupleStoreBackend.STORE_BACKEND_ID_KEY
        data_context.store.tuple_store_backend:TupleStoreBackend.is_ignored_key(key)
        exceptions.exceptions:InvalidKeyError(message)
        """,
    "notification_channels": """
        checkpoint.actions:OpsgenieAlertAction(api_key, region, priority, renderer)
        checkpoint.actions:ValidationAction._data_context
        """,
    "notification_actions": """
        checkpoint.actions:PagerdutyAlertAction(api_key, routing_key, severity)
        checkpoint.actions:PagerdutyAlertAction._run_pypd_alert(dedup_key, message)
        checkpoint.actions:SNSNotificationAction(sns_topic_arn, sns_message_subject)
        checkpoint.actions:SNSNotificationAction._send_sns_notification(sns_subject, validation_results)
        render.renderer.email_renderer:EmailRenderer.render(checkpoint_result)
        render.renderer.microsoft_teams_renderer:MicrosoftTeamsRenderer._build_payload(blocks, data_docs_pages)
        render.renderer.microsoft_teams_renderer:MicrosoftTeamsRenderer.render
        render.renderer.opsgenie_renderer:OpsgenieRenderer.render(checkpoint_result)
        render.renderer.slack_renderer:SlackRenderer.concatenate_text_blocks(action_name, text_blocks)
        render.renderer.slack_renderer:SlackRenderer.render
        """,
}
"""Names by the module of this package that relies on them, as `MODULE:NAME(PARAMETER, ...)`. The parameters are those
that Tidemark passes."""
METRICS = (
    "column.distinct_values.missing_from_column.count",
    "column.distinct_values.not_in_set.count",
    "column.median",
    "column.most_common_value",
    "column.non_null_proportion",
    "column.quantile_values",
    "column.unique_proportion",
    "column_values.nonnull.unexpected_count",
    "column_values.null.unexpected_count",
    "column_values.unique.unexpected_count",
    "compound_columns.unique.unexpected_count",
    "table.column_count",
    "table.column_types",
    "table.columns",
    "table.row_count",
)
"""Metrics of Spark's engine to which `grouped_metrics` refers by name."""
