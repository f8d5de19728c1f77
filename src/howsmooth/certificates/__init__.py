"""Certificates for classifiers: exact first order at the centre, bounded remainders."""
