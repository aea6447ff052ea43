"""Pages in Airflow's UI that show the slices of each pipeline."""
