"""Reports: tables and figures of finished runs."""
