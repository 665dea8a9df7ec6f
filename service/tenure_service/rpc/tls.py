"""Gives gRPC the certificates of files, at each handshake those that are there by then."""

import grpc

from tenure_service.certificates import Files, Watched, pem


def credentials(files: Files) -> grpc.ServerCredentials:
    """Gives the credentials of a server whose certificate is in files.

    Raises:
        OSError: one cannot be read, or is not what it should be.
    """
    watched = Watched(files, _read, "gRPC")
    return grpc.dynamic_ssl_server_credentials(
        watched.latest,
        watched.changed,  # type: ignore[arg-type]  # gRPC takes None for "as before"
        require_client_authentication=files.client_ca is not None,
    )


def _read(files: Files) -> grpc.ServerCertificateConfiguration:
    # gRPC takes anything, and refuses it at the handshake.
    files.context()
    certificate = pem(files.certificate, "CERTIFICATE")
    key = pem(files.key, "PRIVATE KEY")
    ca = None if files.client_ca is None else pem(files.client_ca, "CERTIFICATE")
    return grpc.ssl_server_certificate_configuration([(key, certificate)], ca)
