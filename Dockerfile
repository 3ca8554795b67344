# docker build -t nbmf .
# docker run --read-only --cap-drop ALL -p 8000:8000 -e NBMF_TOKEN -v "$PWD/models:/models:ro" nbmf
#
# Serves /models/model.nbmf as an unprivileged user who needs nothing writable: loops are compiled here, by `nbmf warm`.

FROM python:3.13-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN python -m venv /venv
RUN /venv/bin/pip install --no-cache-dir '.[server]'
ENV NUMBA_CACHE_DIR=/venv/compiled
RUN /venv/bin/nbmf warm

FROM python:3.13-slim
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH NUMBA_CACHE_DIR=/venv/compiled PYTHONUNBUFFERED=1
USER 65534:65534
VOLUME /models
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/ready', timeout=2)"]
ENTRYPOINT ["nbmf"]
# NBMF_TOKEN is needed: without a token the server refuses to listen to other machines
CMD ["serve", "/models/model.nbmf", "--host", "0.0.0.0", "--allow-host", "*", "--access-log", "json"]
